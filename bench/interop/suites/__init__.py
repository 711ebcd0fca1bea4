"""The tests of other people's clients, run as their authors published them: a module for each kind of runner, what all
share in `suite`, and `python -m bench.interop.suites` in `__main__`."""
