package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Where the value of a setting came from.
const (
	OriginDefault = "default"
	OriginFile    = "file"
	OriginFlag    = "flag"
	OriginEnv     = "env"
)

// Setting is one key of the merged configuration.
type Setting struct {
	Key    string `json:"key"`
	Value  any    `json:"value"` // never a secret
	Origin string `json:"origin"`
	At     string `json:"at,omitempty"` // FILE:LINE:COL, for OriginFile
}

// Override is a value that a flag or a variable put in place of the file's.
type Override struct {
	Key, Value string
	Origin     string // OriginFlag or OriginEnv
}

// opaque reports the one key where someone may have written a secret against all
// advice: of a command only the program is shown.
func opaque(key string) bool {
	return strings.HasPrefix(key, "credentials.") && strings.HasSuffix(key, ".local.command")
}

// Merged lists every key that has a value, sorted, with its origin: what a flag
// or a variable put there, else the file, else the default.
func (c *Config) Merged(over ...Override) []Setting {
	var out []Setting
	c.flatten("", reflect.ValueOf(*c), &out)
	for _, o := range over {
		i := slices.IndexFunc(out, func(s Setting) bool { return s.Key == o.Key })
		if i < 0 {
			i = len(out)
			out = append(out, Setting{Key: o.Key})
		}
		out[i] = Setting{Key: o.Key, Value: o.Value, Origin: o.Origin}
	}
	slices.SortStableFunc(out, func(a, b Setting) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func (c *Config) flatten(key string, v reflect.Value, out *[]Setting) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch {
	case opaque(key):
		if !v.IsZero() {
			c.setting(key, masked(v), out)
		}
	case v.Kind() == reflect.Struct:
		for f := range fields(v.Type()) {
			c.flatten(join(key, f.Tag.Get("yaml")), v.FieldByIndex(f.Index), out)
		}
	case v.Kind() == reflect.Map:
		for _, k := range v.MapKeys() {
			c.flatten(join(key, k.String()), v.MapIndex(k), out)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			c.flatten(key+"["+strconv.Itoa(i)+"]", v.Index(i), out)
		}
	default:
		if _, inFile := c.marks[key]; inFile || !v.IsZero() {
			c.setting(key, plain(v), out)
		}
	}
}

func (c *Config) setting(key string, value any, out *[]Setting) {
	s := Setting{Key: key, Value: value, Origin: OriginDefault}
	if _, ok := c.marks[key]; ok {
		s.Origin, s.At = OriginFile, c.At(key)
	}
	*out = append(*out, s)
}

func plain(v reflect.Value) any {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	return v.Interface()
}

// masked shows the program of a command without its arguments.
func masked(v reflect.Value) any {
	return fmt.Sprintf("%v (%d arguments not shown)", v.Index(0), v.Len()-1)
}
