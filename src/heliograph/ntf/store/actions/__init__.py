"""Actions of the pipeline in the store: what was applied, and the rules of each kind."""
