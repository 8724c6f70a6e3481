"""Maps a bundle and runs it; needs the base dependencies only."""
