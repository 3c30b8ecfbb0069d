"""Kernels for small networks: two fully connected layers, as classical agents have them."""
