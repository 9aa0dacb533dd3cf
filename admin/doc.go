// Package admin is the HTTP listener for operators: what state the server is
// in, and the changes of its role.
//
//	GET  /status                     everything that is known, as JSON
//	GET  /healthz                    200 ok, or 503 and why
//	GET  /healthz?role=master        200 on a healthy master only
//	POST /promote                    a slave becomes the master
//	POST /follow?master=HOST:PORT    the server becomes a slave (also /demote)
//	POST /switchover?to=SLAVE        the master hands over to a slave
//	POST /reseed?discard=true        a slave copies its master anew
//
// What it promises: it listens on loopback unless it is told otherwise, and
// answers nobody but programs: a request that comes from a web page, by its
// Origin or by a name that leads here without being this server's, is refused.
// Requests, connections and waits are bounded. Changes are made by the Node that
// it is given, which sees to it that they do not meet.
//
// Goroutines: the HTTP server's, one for each connection; Stop ends them.
//
// What it does not: it knows neither sockets of clients nor files, holds no
// state of its own, and has no dashboard and no metrics.
package admin
