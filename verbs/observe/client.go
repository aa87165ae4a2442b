package observe

import (
	"context"
	"net"
	"net/http"
)

// Base is the URL that requests to a control socket begin with.
const Base = "http://roxie"

// Dial returns an HTTP client whose requests all go to the control socket at path, whatever host
// their URL names (Base will do). It connects with the first request.
func Dial(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		},
		DisableCompression: true,
	}}
}
