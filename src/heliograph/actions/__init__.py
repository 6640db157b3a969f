"""The contract between the pipeline, which decides, and the routers, which act."""
