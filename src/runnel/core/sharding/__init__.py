"""Parameters and batches that several ranks share: which rows are whose."""
