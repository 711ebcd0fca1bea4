"""The manifest's database on disk 1: pages of files, and the seal by which a start knows them."""
