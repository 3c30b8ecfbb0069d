"""What streams are made of: references in one process, or shared memory between processes."""
