"""Stories of the simulated cluster, each about one trouble: damage, snapshots, departures, compaction."""
