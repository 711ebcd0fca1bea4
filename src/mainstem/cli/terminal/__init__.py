"""The outputs of commands: text, tables, JSON, messages, lines of progress."""
