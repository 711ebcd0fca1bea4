"""Nodes whose history lies in object stores, alone or shared."""
