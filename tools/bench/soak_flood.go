package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// calm is how long the quiet client is measured without the flood.
const calm = 12 * time.Second

// flood is the second part: the quiet client's p99 with one that floods is at most
// twice that without, before or after. The flooding client is a process of its own, of
// low priority: what is measured is the proxy's fairness, not the machine's.
func (s *soaked) flood() error {
	t, err := newTraffic(s, "quiet")
	if err != nil {
		return err
	}
	defer t.close()
	before, err := t.alone()
	if err != nil {
		return err
	}
	for _, kind := range []string{"tunnels", "head", "names"} {
		ctx, cancel := context.WithCancel(context.Background())
		var said []byte
		var failed error
		var wg sync.WaitGroup
		wg.Go(func() {
			defer cancel()
			said, failed = s.floodWith(kind)
		})
		with, err := t.measured(ctx)
		wg.Wait()
		cancel()
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("flood of %s: %w\n%s", kind, err, said)
		}
		fmt.Printf("soak: flooded with %s: p50 %.0f us, p99 %.0f us; %s\n", kind, with.p50US, with.p99US, bytes.TrimSpace(said))
		after, err := t.alone()
		if err != nil {
			return err
		}
		if most := max(before.p99US, after.p99US); with.p99US > 2*most {
			return fmt.Errorf("flood of %s: another's p99 went from %.0f to %.0f us", kind, most, with.p99US)
		}
		before = after
	}
	return nil
}

// alone measures for a while without a flood.
func (t *traffic) alone() (sample, error) {
	ctx, cancel := context.WithTimeout(context.Background(), calm)
	defer cancel()
	s, err := t.measured(ctx)
	if err == nil {
		fmt.Printf("soak: quiet client alone: p50 %.0f us, p99 %.0f us\n", s.p50US, s.p99US)
	}
	return s, err
}

func (t *traffic) measured(ctx context.Context) (sample, error) {
	micros, err := t.paced(ctx, "https://"+originName+"/plain/j")
	if err != nil {
		err = fmt.Errorf("quiet client: %w", err)
	}
	return sample{p50US: quantile(micros, .5), p99US: quantile(micros, .99)}, err
}

func (s *soaked) floodWith(kind string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	n := map[string]int64{"tunnels": int64(s.o.tunnels), "head": s.o.stream, "names": int64(s.o.names)}[kind]
	cmd := exec.Command("nice", "-n", "19", self, "flood", s.proxy.addr, kind, strconv.FormatInt(n, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.CombinedOutput()
}

// floodProxy is the process that floods: ADDRESS KIND N.
func floodProxy(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: flood ADDRESS KIND N")
	}
	n, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	switch args[1] {
	case "tunnels":
		return floodTunnels(args[0], int(n))
	case "head":
		return floodHead(args[0], n)
	case "names":
		return floodNames(args[0], int(n))
	}
	return fmt.Errorf("no flood of %q", args[1])
}

func floodAuth() string { return "flood:" + tokenOf("flood") }

// floodTunnels opens n tunnels and keeps as many as it may.
func floodTunnels(addr string, n int) error {
	var open, refused atomic.Int64
	var mu sync.Mutex
	var held []net.Conn
	each := make(chan struct{})
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range each {
				conn, err := dialProxy(addr)
				if err == nil {
					err = connectTo(conn, throughName+":80", floodAuth())
				}
				if err != nil {
					refused.Add(1)
					if conn != nil {
						conn.Close()
					}
					continue
				}
				open.Add(1)
				mu.Lock()
				held = append(held, conn)
				mu.Unlock()
			}
		})
	}
	for range n {
		each <- struct{}{}
	}
	close(each)
	wg.Wait()
	for _, c := range held {
		c.Close()
	}
	fmt.Printf("%d tunnels were open, %d refused\n", open.Load(), refused.Load())
	return nil
}

// floodHead sends n bytes of heads that do not end.
func floodHead(addr string, n int64) error {
	line := append([]byte("X-Flood: "), bytes.Repeat([]byte("x"), 8<<10)...)
	line = append(line, "\r\n"...)
	var sent atomic.Int64
	var conns atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for sent.Load() < n {
				conn, err := dialProxy(addr)
				if err != nil {
					continue
				}
				conns.Add(1)
				_, err = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %s\r\n", plainName,
					base64.StdEncoding.EncodeToString([]byte(floodAuth())))
				for err == nil && sent.Load() < n {
					var m int
					m, err = conn.Write(line)
					sent.Add(int64(m))
				}
				conn.Close()
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d MB of heads on %d connections\n", sent.Load()>>20, conns.Load())
	return nil
}

// floodNames asks for n hosts, each another.
func floodNames(addr string, n int) error {
	denied := atomic.Int64{}
	each := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var c *client
			for i := range each {
				for try := 0; ; try++ {
					if c == nil {
						conn, err := dialProxy(addr)
						if err != nil {
							continue
						}
						c = newClient(conn, "", "")
					}
					status, err := c.askFor(fmt.Sprintf("n%d.bench.test", i))
					if err == nil && status == http.StatusForbidden {
						denied.Add(1)
						break
					}
					c.close()
					if c = nil; try == 3 {
						break
					}
				}
			}
		})
	}
	begin := time.Now()
	for i := range n {
		each <- i
	}
	close(each)
	wg.Wait()
	fmt.Printf("%d of %d names denied in %s\n", denied.Load(), n, time.Since(begin).Round(time.Second))
	if denied.Load() < int64(n) {
		return errors.New("not all names were answered")
	}
	return nil
}

// askFor asks for a host in clear text and returns the status.
func (c *client) askFor(host string) (int, error) {
	_, err := fmt.Fprintf(c.conn, "GET http://%[1]s/ HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %[2]s\r\n\r\n", host,
		base64.StdEncoding.EncodeToString([]byte(floodAuth())))
	if err != nil {
		return 0, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
