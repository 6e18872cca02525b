"""Where files of a store really lie: memory, a folder, S3, the Hub."""
