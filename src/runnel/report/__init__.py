"""Reports of runs: comparisons, tables, plots, pages, model cards."""
