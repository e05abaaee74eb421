# A module with a test, goroutines, cgo and a server: vet, test, build, run.
set -e
cp -r /srv/work/go "$HOME/module"
cd "$HOME/module"
export GOFLAGS=-mod=mod GOPROXY=off
go vet ./...
go test ./... 2>&1 | sed 's/[0-9.]*s$//'
go build -o program .
./program
