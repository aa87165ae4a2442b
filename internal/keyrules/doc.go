// Package keyrules tries the rules of registered memory on two devices and says what happened: what
// reaches which memory while keys and lists change, who may take a key away, where a window ends.
//
// An owner has regions and windows; a peer reaches for them, each time on a connection of its own,
// since a refusal ends a connection. The owner's send queue can be held: a SEND for which the
// peer has no receive, and behind it what is to wait. The peer is roxie. The owner is roxie as well
// (Run), or Linux, which two small programs of ours move there (RunLinux; make keys-guest). What
// Linux did is kept beside the rules (Linux) and stands in docs/keys.md.
//
// It is a demonstration that anybody can run (roxie keys), on an ordinary interface and through the
// API alone. The proofs are the tests of packages rxe and rxe/mr, which stop engine and packets
// where they like.
package keyrules
