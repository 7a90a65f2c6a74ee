// Mutants breaks the code on purpose, one small change at a time, and runs tests:
// a change that no test notices (a survivor) names a missing test, or code that
// does not matter. Mutants come from a list, each a guard with the test that must
// notice its loss, or are made at random from a package. The tree is not touched:
// each mutant is a file laid over it (go help build, -overlay).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// mutant replaces the bytes [from, to) of a file.
type mutant struct {
	file     string
	line     int
	from, to int
	text     string
	what     string
}

func main() {
	count := flag.Int("n", 20, "mutants a package, chosen at random")
	seed := flag.Uint64("seed", 0, "of the choice; 0 takes a new one and prints it")
	list := flag.String("list", "", "`file` of named mutants, each of which its test must kill")
	only := flag.String("only", "", "`regexp` of the files whose named mutants are tried; empty: all")
	flag.Parse()
	survived := 0
	if *list != "" {
		n, err := runList(*list, *only)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		survived += n
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	if flag.NArg() > 0 {
		fmt.Println("seed", *seed)
	}
	for _, dir := range flag.Args() {
		n, err := mutate(dir, *count, rand.New(rand.NewPCG(*seed, 0)))
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		survived += n
	}
	if survived > 0 {
		fmt.Printf("%d survived\n", survived)
		os.Exit(2)
	}
}

func mutate(dir string, count int, rng *rand.Rand) (survived int, err error) {
	all, err := candidates(dir)
	if err != nil {
		return 0, err
	}
	if code, out, err := test(dir, ""); err != nil || code != 0 {
		return 0, fmt.Errorf("%s: the tests fail without a mutant: %w\n%s", dir, err, out)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	tried := 0
	for _, m := range all {
		if tried == count {
			break
		}
		verdict, err := try(dir, m)
		if err != nil {
			return survived, err
		}
		if verdict == "" { // does not compile
			continue
		}
		tried++
		if verdict == "survived" {
			survived++
		}
		fmt.Printf("%-8s %s:%d: %s\n", verdict, m.file, m.line, m.what)
	}
	return survived, nil
}

// try builds and tests one mutant.
func try(dir string, m mutant) (verdict string, err error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	broken := slices.Concat(src[:m.from], []byte(m.text), src[m.to:])
	abs, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	laid, overlay := filepath.Join(tmp, "mutant.go"), filepath.Join(tmp, "overlay.json")
	index, err := json.Marshal(map[string]map[string]string{"Replace": {abs: laid}})
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(laid, broken, 0o600), os.WriteFile(overlay, index, 0o600)); err != nil {
		return "", err
	}
	if exec.Command("go", "vet", "-overlay", overlay, "./"+dir).Run() != nil {
		return "", nil
	}
	code, _, err := test(dir, overlay)
	switch {
	case err != nil:
		return "", err
	case code == 0:
		return "survived", nil
	}
	return "killed", nil
}

// test runs the package's tests; a mutant that hangs is noticed by its timeout.
func test(dir, overlay string) (code int, out []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"test", "-count=1", "-timeout=300s"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	out, err = exec.CommandContext(ctx, "go", append(args, "./"+dir)...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), out, nil
	}
	return 0, out, err
}

func candidates(dir string) ([]mutant, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			all = append(all, mutantsOf(fset, src, name, n)...)
			return true
		})
	}
	return all, nil
}

var swaps = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS,
	token.GTR: token.GEQ, token.GEQ: token.GTR, token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD,
}

func mutantsOf(fset *token.FileSet, src []byte, file string, n ast.Node) []mutant {
	at := func(from, to token.Pos, text, what string) mutant {
		return mutant{file, fset.Position(from).Line, fset.Position(from).Offset, fset.Position(to).Offset, text, what}
	}
	source := func(n ast.Node) string {
		return string(bytes.TrimSpace(src[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset]))
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if to, ok := swaps[n.Op]; ok {
			return []mutant{at(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String(), n.Op.String()+" became "+to.String())}
		}
	case *ast.IfStmt:
		return []mutant{at(n.Cond.Pos(), n.Cond.End(), "!("+source(n.Cond)+")", "if became if not: "+source(n.Cond))}
	case *ast.Ident:
		if other := map[string]string{"true": "false", "false": "true"}[n.Name]; other != "" {
			return []mutant{at(n.Pos(), n.End(), other, n.Name+" became "+other)}
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			return []mutant{at(n.Pos(), n.End(), "("+n.Value+"+1)", n.Value+" grew by one")}
		}
	case *ast.ExprStmt:
		return []mutant{at(n.Pos(), n.End(), "", "removed "+strings.SplitN(source(n), "\n", 2)[0])}
	}
	return nil
}
