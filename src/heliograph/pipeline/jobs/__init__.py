"""The jobs: pure functions of DataFrames."""
