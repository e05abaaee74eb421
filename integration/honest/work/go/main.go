// What a service does: goroutines, a server and its client, C, children, signals, garbage.
package main

/*
static int twice(int n) { return 2 * n; }
*/
import "C"

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

func sum(workers int) int {
	var group sync.WaitGroup
	results := make(chan int, workers)
	for n := 0; n < workers; n++ {
		group.Add(1)
		go func(n int) {
			defer group.Done()
			garbage := make([]byte, 1<<16)
			results <- n + int(garbage[0])
		}(n)
	}
	group.Wait()
	close(results)
	total := 0
	for n := range results {
		total += n
	}
	return total
}

func serve() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "path ", r.URL.Path)
	}))
	answer, err := http.Get("http://" + listener.Addr().String() + "/x")
	if err != nil {
		panic(err)
	}
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

func main() {
	fmt.Println("sum", sum(2000))
	fmt.Println("http", serve())
	fmt.Println("cgo", C.twice(21))
	child, err := exec.Command("sh", "-c", "echo child").Output()
	fmt.Println("exec", string(child[:len(child)-1]), err)
	seen := make(chan os.Signal, 1)
	signal.Notify(seen, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println("signal", <-seen)
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println("collected", memory.NumGC > 0)
}
