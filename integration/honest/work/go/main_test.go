package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSum(t *testing.T) {
	if got := sum(10); got != 45 {
		t.Fatal(got)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	if got := serve(); got != "path /x" {
		t.Fatal(got)
	}
}

func TestTemporary(t *testing.T) {
	if err := os.WriteFile(filepath.Join(t.TempDir(), "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkSum(b *testing.B) {
	for n := 0; n < b.N; n++ {
		sum(10)
	}
}
