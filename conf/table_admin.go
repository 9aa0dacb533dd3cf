package conf

func adminTable() []entry {
	return []entry{
		{key: "admin.host", def: "127.0.0.1", shape: "IP address or host name", syntax: hostOrNothing,
			meaning: "address to bind for the admin listener, which asks nobody for a password: who reaches it may change the role; empty = all interfaces",
			field:   func(c *Config) any { return &c.Admin.Host }},
		{key: "admin.port", def: "12302", max: 65535,
			meaning: "TCP port of the admin listener (HTTP); 0 = off. Where it is not given and taken, the server does without",
			field:   func(c *Config) any { return &c.Admin.Port }},
	}
}
