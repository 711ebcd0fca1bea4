"""Fakes of the splitter's two ends: the node that hands out slices, and the files that come of them."""
