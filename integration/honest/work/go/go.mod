module honest

go 1.19
