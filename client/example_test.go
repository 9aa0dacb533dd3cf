package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"smss/client"
	"smss/codec"
)

// A topic is created, and a message published to it.
func ExampleDial() {
	c, err := client.Dial(context.Background(), "127.0.0.1:12301", client.Options{Timeout: 3 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := c.CreateTopic("order", time.Time{}); err != nil {
		var refusal *client.ServerError
		if !errors.As(err, &refusal) || refusal.Text != codec.TextTopicExist {
			log.Fatal(err)
		}
	}
	m := &codec.Message{
		Headers: []codec.Header{{Key: "kind", Value: "created"}},
		Body:    []byte(`{"order": 17}`),
	}
	if err := c.Publish("order", m, client.Trace("request-4711")); err != nil {
		log.Fatal(err)
	}
}

// Goroutines share the connections of a pool.
func ExamplePool() {
	pool := client.NewPool("127.0.0.1:12301", client.PoolOptions{Size: 8})
	defer pool.Close()
	err := pool.Do(context.Background(), func(c *client.Conn) error {
		return c.PublishDelay("reminder", 10*time.Minute, []*codec.Message{{Body: []byte("call back")}})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// Many messages are published without waiting for each reply.
func ExampleConn_Pipeline() {
	c, err := client.Dial(context.Background(), "127.0.0.1:12301", client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	p := c.Pipeline(32)
	for i := range 10000 {
		m := &codec.Message{Body: fmt.Appendf(nil, "reading %d", i)}
		err := p.Publish("sensor", m)
		for errors.Is(err, client.ErrWindowFull) {
			if err := p.Receive(); err != nil {
				log.Fatal(err)
			}
			err = p.Publish("sensor", m)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	for p.Outstanding() > 0 {
		if err := p.Receive(); err != nil {
			log.Fatal(err)
		}
	}
}

// The loop that Consume runs, by hand.
func ExampleSubscribe() {
	ctx := context.Background()
	s, err := client.Subscribe(ctx, "127.0.0.1:12301", client.SubscribeOptions{
		Topic: "order", Who: "billing", EventID: 0, Batch: 50, AckTimeout: 10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for {
		batch, err := s.Next(ctx)
		if errors.Is(err, client.ErrEnded) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range batch {
			fmt.Println(d.EventID, string(d.Body))
		}
		if err := s.Ack(); err != nil {
			log.Fatal(err)
		}
	}
}

// Consume reconnects by itself. The position is stored behind each batch, so
// that the next start goes on there.
func ExampleConsume() {
	position := int64(0) // read from where OnAck stored it
	_, err := client.Consume(context.Background(), "127.0.0.1:12301", client.ConsumeOptions{
		SubscribeOptions: client.SubscribeOptions{Topic: "order", Who: "billing", EventID: position, Batch: 50},
		OnAck:            func(eventID int64) { position = eventID },
		OnRetry:          func(err error, pause time.Duration) { log.Printf("%v, next attempt in %v", err, pause) },
	}, func(ctx context.Context, batch []client.Delivery) error {
		for _, d := range batch {
			fmt.Println(d.EventID, string(d.Body))
		}
		return nil
	})
	log.Fatal(err)
}
