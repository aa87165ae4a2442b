package keyrules

// Verdict is how Linux rdma_rxe did.
type Verdict string

// The verdicts.
const (
	Passes Verdict = "passes"
	Status Verdict = "status wrong" // refused, as it must be, but the application is not told why
	Fails  Verdict = "**fails**"
)

// measured is what one rule gave with Linux rdma_rxe.
type measured struct {
	got     string
	verdict Verdict
}

const flushed = "Work Request Flushed Error, QP ERR"

// linux is what the same steps gave with rdma_rxe of Debian's kernel 6.12.117, in a virtual
// machine, by a kernel module (F, X) and a user-space program (W), both ends rdma_rxe: printed by
// runs, each repeated with the same result. W5 has the entry of its rule, for both types of windows.
var linux = map[string]measured{
	"F4.control":       {"success; changed A=16384 B=0", Passes},
	"F4.write":         {"success; changed A=0 B=16384", Fails},
	"F4.read":          {"success; read from A=0 B=16384", Fails},
	"F4.write1":        {"success; changed A=0 B=64", Fails},
	"F4.write.natural": {"remote access error; changed A=0 B=0", Fails},
	"F4.read.natural":  {"remote access error; read from A=0 B=0", Fails},
	"F5.newiova.write": {"success; changed A=0 B=16384", Fails},
	"F5.newiova.read":  {"success; read from A=0 B=16384", Fails},
	"F5.longer.write":  {"success; changed A=0 B=16384", Fails},
	"F5.longer.read":   {"success; read from A=0 B=16384", Fails},
	"F5.shorter.write": {"remote access error; changed A=0 B=0", Fails},
	"F5.shorter.read":  {"remote access error; read from A=0 B=0", Fails},
	"F1":               {"1000 of 1000 cycles right", Passes},
	"F2":               {"20 of 20 cycles right", Passes},
	"F3": {"old key: success, 16384 bytes; " +
		"new key: remote access error, 0 bytes", Passes},
	"F7.write": {"3 of 4700 rounds; " +
		"120 of 120 with the responder held before its copy", Fails},
	"F7.read": {"3 of 4700 rounds; " +
		"100 of 100 with the responder held before its copy", Fails},

	"X1":   {flushed + "; key works", Status},
	"X2":   {"success, then success, QP RTS", Passes},
	"X3":   {"WRITE success, READ success", Passes},
	"X3b":  {"remote access error, 0 bytes", Passes},
	"X4":   {"remote access error, 0 bytes", Passes},
	"X5":   {flushed, Status},
	"X6":   {"success; key is dead", Fails},
	"X7":   {flushed + "; key works", Status},
	"X8":   {flushed, Status},
	"X8b":  {flushed, Status},
	"X9":   {"REG_MR success; WRITE remote access error; LOCAL_INV success", Passes},
	"X10a": {"sender success, receiver success with invalidate; key is dead", Passes},
	"X10b": {"sender success, receiver remote invalid request error; " +
		"receiver's QP ERR; key works", Status},
	"X10c":      {"sender success, receiver success with invalidate; key is dead", Fails},
	"X11.write": {"remote access error, 0 bytes", Passes},
	"X11.read":  {"remote access error, 0 bytes", Passes},

	"WRITE inside: works":                              {"success, 4096 bytes", Passes},
	"READ inside: works":                               {"success, 4096 bytes", Passes},
	"WRITE 64 bytes below, inside the region: refused": {"success, 64 bytes", Fails},
	"WRITE 64 bytes above, inside the region: refused": {"success, 64 bytes", Fails},
	"READ 64 bytes above, inside the region: refused":  {"success, 64 bytes", Fails},
	"WRITE 4096 bytes across its end: refused":         {"success, 4096 bytes", Fails},
	"READ the whole region through it: refused":        {"success, 65536 bytes", Fails},
	"WRITE 64 bytes outside the region: refused":       {"remote access error, 0 bytes", Passes},
	"W2":           {flushed, Status},
	"W3":           {"WRITE remote access error, 0 bytes", Passes},
	"W4 type 1":    {flushed, Status},
	"W4 region":    {flushed, Status},
	"W4 type 2":    {"success; WRITE remote access error, 0 bytes", Passes},
	"W6":           {"READ success; WRITE remote access error, 0 bytes", Passes},
	"W7 region":    {flushed, Status},
	"W7 window":    {flushed, Status},
	"W8":           {"success", Fails},
	"W9":           {"WRITE success, 64 bytes; in the right place", Passes},
	"WX local":     {"success; window is dead", Fails},
	"WX local PD":  {"success; window is dead", Fails},
	"WX remote":    {"sender success, receiver success; window is dead", Fails},
	"WX remote PD": {"sender success, receiver success; window is dead", Fails},
	"PD":           {"WRITE remote access error, 0 bytes", Passes},
}

// Linux is what the rule of an outcome gave with Linux rdma_rxe.
func (o *Outcome) Linux() (got string, v Verdict) {
	m, ok := linux[o.ID]
	if !ok {
		m = linux[o.Rule]
	}
	return m.got, m.verdict
}
