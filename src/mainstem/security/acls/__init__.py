"""Access control lists: rules on what principals may do with which resources, as in Kafka, and the judge over them."""
