"""The tables of the pipeline: reading, committing and maintaining them."""
