"""The transport between nodes: agents that own shared memory, and remote ends that call them."""
