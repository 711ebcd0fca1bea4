"""The clients that the tests run, behind one face."""
