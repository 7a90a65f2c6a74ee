// Sqlitelog appends records to a SQLite database from many writers, each of which
// waits until its record is durable: what the audit log is compared with. WAL,
// synchronous=FULL, and one transaction for all records that arrived during the last.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	_ "modernc.org/sqlite"
)

type row struct {
	text string
	done chan error
}

func main() {
	dir := flag.String("dir", "", "`folder` of the database")
	writers := flag.Int("writers", 32, "concurrent writers")
	size := flag.Int("size", 700, "bytes of a record")
	duration := flag.Duration("duration", 3*time.Second, "how long")
	flag.Parse()
	if err := run(*dir, *writers, *size, *duration); err != nil {
		fmt.Fprintln(os.Stderr, "sqlitelog:", err)
		os.Exit(1)
	}
}

func run(dir string, writers, size int, d time.Duration) error {
	ctx := context.Background()
	db, err := sql.Open("sqlite", filepath.Join(dir, "log.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, "CREATE TABLE records (seq INTEGER PRIMARY KEY, line TEXT NOT NULL)"); err != nil {
		return err
	}
	queue := make(chan row, 4096)
	go commit(ctx, db, queue)
	text := string(slices.Repeat([]byte("r"), size))
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	began := time.Now()
	for range writers {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(began) < d {
				from := time.Now()
				r := row{text, make(chan error, 1)}
				queue <- r
				if err := <-r.done; err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				own = append(own, time.Since(from))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if failed != nil {
		return failed
	}
	took := time.Since(began)
	slices.Sort(all)
	return json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"records_per_second": float64(len(all)) / took.Seconds(),
		"p50_us":             float64(all[len(all)/2].Microseconds()),
		"p99_us":             float64(all[len(all)*99/100].Microseconds()),
	})
}

// commit writes what waits in one transaction, again and again.
func commit(ctx context.Context, db *sql.DB, queue chan row) {
	for first := range queue {
		batch := []row{first}
		for len(queue) > 0 {
			batch = append(batch, <-queue)
		}
		err := insert(ctx, db, batch)
		for _, r := range batch {
			r.done <- err
		}
	}
}

func insert(ctx context.Context, db *sql.DB, batch []row) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	stmt, err := tx.PrepareContext(ctx, "INSERT INTO records (line) VALUES (?)")
	if err != nil {
		return err
	}
	defer stmt.Close()
	for _, r := range batch {
		if _, err := stmt.ExecContext(ctx, r.text); err != nil {
			return err
		}
	}
	return tx.Commit()
}
