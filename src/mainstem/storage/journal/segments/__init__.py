"""The files of the journal: named, made in advance, opened, walked, indexed."""
