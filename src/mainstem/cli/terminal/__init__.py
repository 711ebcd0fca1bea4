"""What commands write: text, tables, JSON, messages, lines of progress."""
