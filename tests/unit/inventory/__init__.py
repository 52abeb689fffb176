"""Tests of reading inventories; a package, so that its file names may recur elsewhere."""
