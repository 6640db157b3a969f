"""The command line: reads arguments and starts the parts; it holds no protocol logic of its own."""
