"""The operator's commands, one module a command or family; loaded when they are called."""
