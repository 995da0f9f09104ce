"""The billing database and the files of reports, each in the domain's words."""
