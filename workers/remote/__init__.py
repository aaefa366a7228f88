"""Workers in other processes, on Ray or on this machine: how they are started, reached, watched and ended."""
