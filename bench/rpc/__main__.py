"""See the package."""

from bench.rpc.measure import main

main()
