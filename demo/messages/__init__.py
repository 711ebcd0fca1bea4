"""The messages of the demos: where they come from, who sends and reads them, and the book of them."""
