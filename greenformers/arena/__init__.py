"""Tasks in the manner of Long Range Arena: networks trained alike, with the controls that its tables leave out."""
