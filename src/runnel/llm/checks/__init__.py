"""What is looked at before a run of a language model starts."""
