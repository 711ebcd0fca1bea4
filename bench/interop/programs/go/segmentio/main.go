// kafka-go.
package main

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"
	. "mainstem.interop/scenario"
)

func main() {
	Run(map[string]Play{"round trip": roundTrip, "consumer group": consumerGroup})
}

func topic(ctx context.Context, address string) (string, error) {
	name := NewName("topic")
	client := &kafka.Client{Addr: kafka.TCP(address)}
	answer, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: name, NumPartitions: 1, ReplicationFactor: 1}},
	})
	if err != nil {
		return "", err
	}
	return name, answer.Errors[name]
}

func send(ctx context.Context, address, topic string, count int, codec kafka.Compression) error {
	writer := &kafka.Writer{
		Addr: kafka.TCP(address), Topic: topic, RequiredAcks: kafka.RequireAll, Compression: codec, BatchSize: count,
	}
	defer writer.Close()
	var messages []kafka.Message
	for _, value := range Numbers(0, count) {
		messages = append(messages, kafka.Message{Value: []byte(value)})
	}
	return writer.WriteMessages(ctx, messages...)
}

func take(ctx context.Context, reader *kafka.Reader, count int, commits bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, Max)
	defer cancel()
	var found []string
	for len(found) < count {
		message, err := reader.FetchMessage(ctx)
		if err == nil && commits {
			err = reader.CommitMessages(ctx, message)
		}
		if err != nil {
			return found, fmt.Errorf("%d of %d messages: %w", len(found), count, err)
		}
		found = append(found, string(message.Value))
	}
	return found, nil
}

func roundTrip(ctx context.Context, address string) error {
	for _, codec := range []kafka.Compression{0, kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		name, err := topic(ctx, address)
		if err == nil {
			err = send(ctx, address, name, 100, codec)
		}
		if err != nil {
			return err
		}
		reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{address}, Topic: name, Partition: 0})
		found, err := take(ctx, reader, 100, false)
		reader.Close()
		if err == nil {
			err = Same(found, Numbers(0, 100), "messages")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func consumerGroup(ctx context.Context, address string) error {
	name, err := topic(ctx, address)
	if err == nil {
		err = send(ctx, address, name, 10, 0)
	}
	if err != nil {
		return err
	}
	group := NewName("group")
	for _, expected := range [][]string{Numbers(0, 4), Numbers(4, 10)} {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{address}, Topic: name, GroupID: group, StartOffset: kafka.FirstOffset,
		})
		found, err := take(ctx, reader, len(expected), true)
		reader.Close()
		if err == nil {
			err = Same(found, expected, "messages of one member")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
