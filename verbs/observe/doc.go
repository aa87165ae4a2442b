// Package observe lets others look into a program that uses verbs while it runs: metrics for
// Prometheus, the state of every QP and region, and whatever handlers the program adds, all by HTTP
// over a Unix socket that only its owner may open.
//
//	program                                      other programs
//	verbs.Context ─ Attach ─► Server ─ socket ─► roxie top, stat, dump; Prometheus; Client
//
//	s, err := observe.Listen(observe.DefaultPath)
//	s.Attach(dev)
//
// Nothing is counted for it and nothing is prepared: a request takes each shard between two batches,
// copies, and lets it go. Who does not ask pays nothing.
//
// The package listens on no network port. docs/observe.md tells how Prometheus scrapes a socket.
package observe
