"""What a stat or a study has to show, drawn: in the terminal and for a paper."""
