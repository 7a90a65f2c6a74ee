// A module of its own, for its name: Go initialises packages in the order of their
// paths, and this one has to come before those that it leaves out.
module a.warder/early

go 1.26.3
