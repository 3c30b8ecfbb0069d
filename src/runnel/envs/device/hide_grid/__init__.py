"""Hide-and-seek on a grid: first states (`plan`), moves, sight, what agents see (`view`), and the world of these."""
