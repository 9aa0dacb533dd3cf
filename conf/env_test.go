package conf

import (
	"strings"
	"testing"
)

func TestEnvironmentNames(t *testing.T) {
	for key, want := range map[string]string{
		"port":                       "SMSS_PORT",
		"store.maxLogSize":           "SMSS_STORE_MAX_LOG_SIZE",
		"store.waitDelLockTimeoutMs": "SMSS_STORE_WAIT_DEL_LOCK_TIMEOUT_MS",
		"log.withGid":                "SMSS_LOG_WITH_GID",
		"timeout.net.write":          "SMSS_TIMEOUT_NET_WRITE",
		"limits.maxWhoLength":        "SMSS_LIMITS_MAX_WHO_LENGTH",
	} {
		if got := envName(key); got != want {
			t.Errorf("envName(%q) = %q, want %q", key, got, want)
		}
	}
}

func TestEnvironmentNamesAreUnique(t *testing.T) {
	owner := map[string]string{envConfig: "config", envAddr: "addr"}
	for _, e := range table() {
		for _, name := range []string{envName(e.key), envNameUnsplit(e.key)} {
			if other, ok := owner[name]; ok && other != e.key {
				t.Errorf("%s stands for %s and %s", name, other, e.key)
			}
			if strings.HasPrefix(name, envTest) || isServiceLink(name, "1") {
				t.Errorf("%s (%s) would be ignored", name, e.key)
			}
			owner[name] = e.key
		}
	}
}

func TestBothSpellingsOfAVariable(t *testing.T) {
	for _, name := range []string{"SMSS_STORE_MAX_LOG_SIZE", "SMSS_STORE_MAXLOGSIZE"} {
		c, err := loadText("", name+"=2MiB")
		if err != nil || c.Store.MaxLogSize != 2<<20 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := loadText("", "SMSS_STORE_MAX_DAYS=2", "SMSS_STORE_MAXDAYS=2"); err != nil {
		t.Errorf("twice the same: %v", err)
	}
	_, err := loadText("", "SMSS_STORE_MAX_DAYS=2", "SMSS_STORE_MAXDAYS=3")
	wantProblems(t, err, "SMSS_STORE_MAX_DAYS … SMSS_STORE_MAXDAYS says something else")
}

func TestVariablesThatAreNotSettings(t *testing.T) {
	if _, err := loadText("", "SMSS_ADDR=host:1", "SMSS_TEST_SEED=1", "SMSS_FOO=", "PORT=x", "SMSS", "=C:=x"); err != nil {
		t.Errorf("%v, want all ignored", err)
	}
	_, err := loadText("", "SMSS_FOO=1", "smss_port=2")
	wantProblems(t, err, "environment SMSS_FOO = \"1\": names no setting")
}

func TestEmptyVariableIsNotSet(t *testing.T) {
	c, err := loadText("port: 5", "SMSS_PORT=")
	if err != nil || c.Port != 5 {
		t.Errorf("port %v, %v; want the file's", c, err)
	}
}

// Kubernetes puts these into every container beside a Service called smss.
func TestServiceLinksOfThePlatform(t *testing.T) {
	c, err := loadText("",
		"SMSS_SERVICE_HOST=10.0.0.1", "SMSS_SERVICE_PORT=12301", "SMSS_SERVICE_PORT_TCP=12301", "SMSS_PORT=tcp://10.0.0.1:12301",
		"SMSS_PORT_12301_TCP=tcp://10.0.0.1:12301", "SMSS_PORT_12301_TCP_PROTO=tcp", "SMSS_PORT_12301_TCP_PORT=12301",
		"SMSS_PORT_12301_TCP_ADDR=10.0.0.1", "SMSS_MASTER_SERVICE_HOST=10.0.0.2", "SMSS_MASTER_PORT=tcp://10.0.0.2:12301")
	if err != nil {
		t.Fatal(err)
	}
	if c.Port != 12301 || c.Master.Port != 12301 || c.Given("port") {
		t.Errorf("port %d, master %d; want the defaults", c.Port, c.Master.Port)
	}
	if w := c.Warnings(); len(w) != 2 || !strings.HasPrefix(w[1], "SMSS_PORT =") {
		t.Errorf("warnings %q, want one for each of SMSS_MASTER_PORT and SMSS_PORT", w)
	}
}

func TestSlaveFromTheEnvironment(t *testing.T) {
	c, err := loadText("", "SMSS_ROLE=slave", "SMSS_MASTER_HOST=m", "SMSS_MASTER_PORT=9", "SMSS_MASTER_EVENT=8")
	if err != nil || c.Role != "slave" || c.Master.Host != "m" || c.Master.Port != 9 || c.Master.EventID != 8 {
		t.Errorf("%+v, %v", c, err)
	}
}
