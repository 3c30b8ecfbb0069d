"""The board: a page in the browser over a folder of runs, live and finished."""
