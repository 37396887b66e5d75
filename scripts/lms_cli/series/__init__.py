"""The patch series of the releases: reading, checking, exporting and porting them."""
