"""One request's life: what is asked, where it goes, both legs, their common end. The only room that sees http/ and policy/."""
