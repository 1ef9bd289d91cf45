"""Parts of HTML pages: escaping, tables, plots, thumbnails, style."""
