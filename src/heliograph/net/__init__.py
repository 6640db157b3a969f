"""Names and addresses of other machines: which are public, and how names are resolved."""
